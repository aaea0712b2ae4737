package e2b

import (
	"context"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// clientID is a field that clients require and do not use.
const clientID = "dsec"

// sandboxView is what clients need to reach a sandbox.
type sandboxView struct {
	TemplateID         string `json:"templateID"`
	SandboxID          string `json:"sandboxID"`
	ClientID           string `json:"clientID"`
	EnvdVersion        string `json:"envdVersion"`
	Alias              string `json:"alias,omitempty"`
	EnvdAccessToken    string `json:"envdAccessToken,omitempty"`
	TrafficAccessToken string `json:"trafficAccessToken,omitempty"`
	Domain             string `json:"domain,omitempty"`
}

func (d *Door) view(ctx context.Context, b *dsecv1.Sandbox) (v sandboxView, err error) {
	v = d.plainView(b)
	if v.EnvdAccessToken, err = d.o.Keys.SandboxToken(ctx, purposeEnvd, sandbox.ID(b.GetId())); err != nil {
		return v, err
	}
	if b.GetSpec().GetLabels()[labelPrivate] == "true" {
		v.TrafficAccessToken, err = d.o.Keys.SandboxToken(ctx, purposeTraffic, sandbox.ID(b.GetId()))
	}
	return v, err
}

// plainView is a view without tokens.
func (d *Door) plainView(b *dsecv1.Sandbox) sandboxView {
	t := templateOf(b)
	return sandboxView{TemplateID: t, SandboxID: b.GetId(), ClientID: clientID, EnvdVersion: envdVersion, Alias: t, Domain: d.o.Domain}
}

// templateOf is what a sandbox was made of, as whoever made it called it.
func templateOf(b *dsecv1.Sandbox) string {
	if t := b.GetSpec().GetLabels()[labelTemplate]; t != "" {
		return t
	}
	e := b.GetSpec().GetEnvironment()
	for _, n := range []string{e.GetName(), e.GetBase(), e.GetImage(), e.GetSnapshot()} {
		if n != "" {
			return n
		}
	}
	return "unnamed"
}

// listedView is a sandbox in lists.
type listedView struct {
	sandboxView
	StartedAt    string            `json:"startedAt"`
	EndAt        string            `json:"endAt"`
	CPUCount     int64             `json:"cpuCount"`
	MemoryMB     int64             `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	Metadata     map[string]string `json:"metadata"`
	State        string            `json:"state"`
	VolumeMounts []string          `json:"volumeMounts"`
}

func (d *Door) listed(b *dsecv1.Sandbox) listedView {
	l := b.GetSpec().GetLimits()
	ends := b.GetExpiresAt().AsTime()
	if b.GetPausedUntil() != nil {
		ends = b.GetPausedUntil().AsTime()
	} else if b.GetExpiresAt() == nil { // one of another door, without a time to live
		ends = b.GetCreatedAt().AsTime().Add(maxTimeout * time.Second)
	}
	return listedView{
		sandboxView: d.plainView(b),
		StartedAt:   b.GetCreatedAt().AsTime().Format(time.RFC3339Nano),
		EndAt:       ends.Format(time.RFC3339Nano),
		CPUCount:    max(1, (l.GetCpuMillis()+999)/1000),
		MemoryMB:    l.GetMemoryBytes() >> 20,
		DiskSizeMB:  l.GetDiskBytes() >> 20,
		Metadata:    metadataOf(b.GetSpec().GetLabels()),
		State:       stateWord(b.GetState()),
		// Always empty: there are no volumes.
		VolumeMounts: []string{},
	}
}

func stateWord(s dsecv1.SandboxState) string {
	if s == dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
		return "paused"
	}
	return "running"
}

// detailView is the answer to info.
type detailView struct {
	listedView
	AllowInternetAccess bool          `json:"allowInternetAccess"`
	Network             networkConfig `json:"network"`
	Lifecycle           lifecycle     `json:"lifecycle"`
}

type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

func (d *Door) detail(ctx context.Context, b *dsecv1.Sandbox) (detailView, error) {
	v := detailView{listedView: d.listed(b)}
	var err error
	if v.sandboxView, err = d.view(ctx, b); err != nil {
		return v, err
	}
	v.Network, v.AllowInternetAccess = networkView(b)
	v.Lifecycle = lifecycle{AutoResume: !b.GetSpec().GetManualResume(), OnTimeout: "kill"}
	if b.GetSpec().GetOnTimeout() == dsecv1.OnTimeout_ON_TIMEOUT_PAUSE {
		v.Lifecycle.OnTimeout = "pause"
	}
	return v, nil
}

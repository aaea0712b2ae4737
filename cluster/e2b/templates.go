package e2b

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// templateView is an environment as clients list it.
type templateView struct {
	TemplateID  string   `json:"templateID"`
	BuildID     string   `json:"buildID"`
	CPUCount    int64    `json:"cpuCount"`
	MemoryMB    int64    `json:"memoryMB"`
	DiskSizeMB  int64    `json:"diskSizeMB"`
	Public      bool     `json:"public"`
	Aliases     []string `json:"aliases"`
	Names       []string `json:"names"`
	CreatedAt   string   `json:"createdAt"`
	UpdatedAt   string   `json:"updatedAt"`
	EnvdVersion string   `json:"envdVersion"`
	BuildStatus string   `json:"buildStatus"`
	SpawnCount  int      `json:"spawnCount"`
	BuildCount  int      `json:"buildCount"`
}

func viewOfEnvironment(e *dsecv1.NamedEnvironment) templateView {
	l := e.GetLimits()
	return templateView{
		TemplateID: e.GetName(), BuildID: buildIDOf(e), CPUCount: l.GetCpuMillis() / 1000, MemoryMB: l.GetMemoryBytes() >> 20, DiskSizeMB: l.GetDiskBytes() >> 20,
		Public: true, Aliases: []string{e.GetName()}, Names: []string{e.GetName()},
		CreatedAt: e.GetCreatedAt().AsTime().Format(time.RFC3339Nano), UpdatedAt: e.GetUpdatedAt().AsTime().Format(time.RFC3339Nano),
		EnvdVersion: envdVersion, BuildStatus: "ready", BuildCount: 1,
	}
}

// environmentsAndBases is everything by whose name a sandbox can be made.
func (d *Door) environmentsAndBases(r *http.Request) ([]templateView, error) {
	envs, err := d.environments.ListEnvironments(r.Context(), &dsecv1.ListEnvironmentsRequest{})
	if err != nil {
		return nil, err
	}
	out := []templateView{}
	at := map[string]int{}
	for _, e := range envs.GetEnvironments() {
		at[e.GetName()] = -1
	}
	var tags []string
	for _, e := range envs.GetEnvironments() {
		if k := strings.LastIndexByte(e.GetName(), ':'); k > 0 && at[e.GetName()[:k]] != 0 {
			tags = append(tags, e.GetName()) // of a template, which is listed
			continue
		}
		out = append(out, viewOfEnvironment(e))
		at[e.GetName()] = len(out)
	}
	for _, t := range tags {
		if k := at[t[:strings.LastIndexByte(t, ':')]]; k > 0 {
			out[k-1].Names = append(out[k-1].Names, t)
		}
	}
	layers, err := d.layers.ListLayers(r.Context(), &dsecv1.ListLayersRequest{Kind: dsecv1.LayerKind_LAYER_KIND_BASE})
	if err != nil {
		return nil, err
	}
	for _, l := range layers.GetLayers() {
		if l.GetName() != "" && !slices.ContainsFunc(out, func(t templateView) bool { return t.TemplateID == l.GetName() }) {
			out = append(out, viewOfEnvironment(&dsecv1.NamedEnvironment{Name: l.GetName(), CreatedAt: l.GetCreatedAt(), UpdatedAt: l.GetCreatedAt()}))
		}
	}
	return out, nil
}

func (d *Door) listTemplates(w http.ResponseWriter, r *http.Request) error {
	out, err := d.environmentsAndBases(r)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (d *Door) template(w http.ResponseWriter, r *http.Request) error {
	t, err := d.templateNamed(r, r.PathValue("id"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, t)
	return nil
}

func (d *Door) templateNamed(r *http.Request, name string) (templateView, error) {
	all, err := d.environmentsAndBases(r)
	if err != nil {
		return templateView{}, err
	}
	name, _, err = splitBackend(name)
	if err != nil {
		return templateView{}, err
	}
	for _, t := range all {
		if t.TemplateID == name || slices.Contains(t.Names, name) {
			return t, nil
		}
	}
	return templateView{}, refused(http.StatusNotFound, "template %.100q was not found", name)
}

func (d *Door) alias(w http.ResponseWriter, r *http.Request) error {
	t, err := d.templateNamed(r, r.PathValue("alias"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{"templateID": t.TemplateID, "public": true})
	return nil
}

// deleteTemplate deletes a snapshot, by id or name, or a named environment. Bases stay: others may stand on them.
func (d *Door) deleteTemplate(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	snap, err := d.snapshotOf(r.Context(), id)
	if err != nil {
		return err
	}
	if snap != nil {
		_, err = d.snapshots.DeleteSnapshot(r.Context(), &dsecv1.DeleteSnapshotRequest{SnapshotId: snap.GetId()})
	} else {
		var tags []*dsecv1.NamedEnvironment
		if _, tags, err = d.environmentNamed(r, id); err != nil {
			return err
		}
		_, err = d.environments.DeleteEnvironment(r.Context(), &dsecv1.DeleteEnvironmentRequest{Name: id})
		for _, t := range tags {
			if err == nil {
				_, err = d.environments.DeleteEnvironment(r.Context(), &dsecv1.DeleteEnvironmentRequest{Name: t.GetName()})
			}
		}
		if c := connect.CodeOf(err); c == connect.CodeNotFound || c == connect.CodeInvalidArgument {
			err = refused(http.StatusNotFound, "template %.100q was not found: it names no snapshot and no environment", id)
		}
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

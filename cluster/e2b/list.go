package e2b

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

const (
	maxPage = 100
	// maxCollected bounds a list that has to be put together before its first page is known.
	maxCollected = 10_000
)

// query are the filters of a list.
type query struct {
	metadata     map[string]string
	states       []dsecv1.SandboxState
	templates    map[string]bool
	startedAfter time.Time
	ascending    bool
	limit        int
	token        string
}

func parseQuery(v url.Values) (q query, err error) {
	q = query{metadata: map[string]string{}, templates: map[string]bool{}, limit: maxPage, token: v.Get("nextToken")}
	if q.metadata, err = parseMetadata(v.Get("metadata")); err != nil {
		return q, err
	}
	for _, s := range commas(v["state"]) {
		switch s {
		case "running":
			q.states = append(q.states, dsecv1.SandboxState_SANDBOX_STATE_RUNNING)
		case "paused":
			q.states = append(q.states, dsecv1.SandboxState_SANDBOX_STATE_PAUSED)
		default:
			return q, refused(http.StatusBadRequest, "state %.20q: want running or paused", s)
		}
	}
	if len(q.states) == 0 {
		q.states = []dsecv1.SandboxState{dsecv1.SandboxState_SANDBOX_STATE_RUNNING, dsecv1.SandboxState_SANDBOX_STATE_PAUSED}
	}
	for _, t := range commas(v["template"]) {
		q.templates[t] = true
	}
	switch o := v.Get("order"); o {
	case "", "desc":
	case "asc":
		q.ascending = true
	default:
		return q, refused(http.StatusBadRequest, "order %.20q: want asc or desc", o)
	}
	if s := v.Get("startedAfter"); s != "" {
		if q.startedAfter, err = time.Parse(time.RFC3339Nano, s); err != nil {
			return q, refused(http.StatusBadRequest, "startedAfter %.40q: want a time like 2026-01-02T15:04:05Z", s)
		}
	}
	if s := v.Get("limit"); s != "" {
		if q.limit, err = strconv.Atoi(s); err != nil || q.limit < 1 || q.limit > maxPage {
			return q, refused(http.StatusBadRequest, "limit %.20q: want 1 to %d", s, maxPage)
		}
	}
	return q, nil
}

func commas(values []string) (out []string) {
	for _, v := range values {
		for s := range strings.SplitSeq(v, ",") {
			if s = strings.TrimSpace(s); s != "" {
				out = append(out, s)
			}
		}
	}
	return out
}

// parseMetadata reads pairs that are encoded as a query inside of the query, each part of them once or twice more.
func parseMetadata(s string) (map[string]string, error) {
	out := map[string]string{}
	pairs, err := url.ParseQuery(s)
	if err != nil {
		return nil, refused(http.StatusBadRequest, "metadata %.100q: want name=value pairs, encoded as a query", s)
	}
	for k, v := range pairs {
		out[unescape(k)] = unescape(v[0])
	}
	return out, nil
}

func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}

// wants tells whether a sandbox of this door passes the filters that our own lists do not have.
func (q query) wants(b *dsecv1.Sandbox) bool {
	t, ours := b.GetSpec().GetLabels()[labelTemplate]
	return ours && (len(q.templates) == 0 || q.templates[t]) && (q.startedAfter.IsZero() || b.GetCreatedAt().AsTime().After(q.startedAfter))
}

// list shows the sandboxes that were made through this door.
func (d *Door) list(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r.URL.Query())
	if err != nil {
		return err
	}
	var page []*dsecv1.Sandbox
	var next string
	if q.ascending {
		page, next, err = d.pageAscending(r.Context(), q)
	} else {
		page, next, err = d.page(r.Context(), q)
	}
	if err != nil {
		return err
	}
	out := make([]listedView, len(page))
	for i, b := range page {
		out[i] = d.listed(b)
	}
	if next != "" {
		w.Header().Set("X-Next-Token", next)
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// page collects one page, newest first. It asks for what is missing only, so that the API's token is where it ends.
func (d *Door) page(ctx context.Context, q query) (out []*dsecv1.Sandbox, next string, err error) {
	labels := map[string]string{}
	if err := metadataLabels(q.metadata, labels); err != nil {
		return nil, "", err
	}
	for token := q.token; ; {
		resp, err := d.sandboxes.ListSandboxes(ctx, &dsecv1.ListSandboxesRequest{Labels: labels, States: q.states, PageSize: int32(q.limit - len(out)), PageToken: token})
		if err != nil {
			return nil, "", err
		}
		for _, b := range resp.GetSandboxes() {
			if !q.startedAfter.IsZero() && !b.GetCreatedAt().AsTime().After(q.startedAfter) {
				return out, "", nil // the others are older still
			}
			if q.wants(b) {
				out = append(out, b)
			}
		}
		if token = resp.GetNextPageToken(); token == "" || len(out) >= q.limit {
			return out, token, nil
		}
	}
}

// pageAscending collects all, and pages by number.
func (d *Door) pageAscending(ctx context.Context, q query) ([]*dsecv1.Sandbox, string, error) {
	skip := 0
	if q.token != "" {
		var err error
		if skip, err = strconv.Atoi(q.token); err != nil || skip < 0 {
			return nil, "", refused(http.StatusBadRequest, "nextToken %.40q is none of ours", q.token)
		}
	}
	var all []*dsecv1.Sandbox
	for one := (query{metadata: q.metadata, states: q.states, templates: q.templates, startedAfter: q.startedAfter, limit: maxPage}); ; {
		page, next, err := d.page(ctx, one)
		if err != nil {
			return nil, "", err
		}
		if all = append(all, page...); len(all) > maxCollected {
			return nil, "", unsupported("order=asc over more than %d sandboxes: give filters", maxCollected)
		}
		if one.token = next; next == "" {
			break
		}
	}
	from := max(0, len(all)-skip-q.limit)
	to := max(0, len(all)-skip)
	out := make([]*dsecv1.Sandbox, 0, to-from)
	for i := to - 1; i >= from; i-- {
		out = append(out, all[i])
	}
	if from == 0 {
		return out, "", nil
	}
	return out, strconv.Itoa(skip + len(out)), nil
}

package e2b

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/layer"
)

// defaultTag is the tag of builds that have none. A tag is a named environment, NAME:TAG, which stays what it is when NAME is
// built anew.
const defaultTag = "default"

type tagView struct {
	Tag       string `json:"tag"`
	BuildID   string `json:"buildID"`
	CreatedAt string `json:"createdAt"`
}

// buildIDOf is what clients know an environment's content by.
func buildIDOf(e *dsecv1.NamedEnvironment) string {
	stack, _ := proto.MarshalOptions{Deterministic: true}.Marshal(e.GetStack())
	sum := sha256.Sum256(stack)
	return uuid([16]byte(sum[:16]))
}

// environmentNamed finds a named environment; nil = there is none.
func (d *Door) environmentNamed(r *http.Request, name string) (*dsecv1.NamedEnvironment, []*dsecv1.NamedEnvironment, error) {
	envs, err := d.environments.ListEnvironments(r.Context(), &dsecv1.ListEnvironmentsRequest{})
	if err != nil {
		return nil, nil, err
	}
	var found *dsecv1.NamedEnvironment
	var tags []*dsecv1.NamedEnvironment
	for _, e := range envs.GetEnvironments() {
		if e.GetName() == name {
			found = e
		} else if tag, ok := strings.CutPrefix(e.GetName(), name+":"); ok && !strings.Contains(tag, ":") {
			tags = append(tags, e)
		}
	}
	return found, tags, nil
}

func (d *Door) listTags(w http.ResponseWriter, r *http.Request) error {
	found, tags, err := d.environmentNamed(r, r.PathValue("id"))
	if err != nil {
		return err
	}
	if found == nil {
		return refused(http.StatusNotFound, "template %.100q was not found", r.PathValue("id"))
	}
	out := []tagView{}
	for _, e := range tags {
		out = append(out, tagView{strings.TrimPrefix(e.GetName(), found.GetName()+":"), buildIDOf(e), e.GetUpdatedAt().AsTime().Format(time.RFC3339Nano)})
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// assignTags gives what a name (with a tag or without) means now further tags.
func (d *Door) assignTags(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Target string
		Tags   []string
	}
	if err := readJSON(r, &in); err != nil {
		return err
	}
	name, _, _ := strings.Cut(in.Target, ":")
	if err := checkTags(name, in.Tags); err != nil {
		return err
	}
	found, _, err := d.environmentNamed(r, in.Target)
	if err != nil {
		return err
	}
	if found == nil {
		return refused(http.StatusNotFound, "template %.100q was not found", in.Target)
	}
	for _, full := range tagged(name, in.Tags) {
		e := proto.Clone(found).(*dsecv1.NamedEnvironment)
		e.Name, e.CreatedAt, e.UpdatedAt = full, nil, nil
		if _, err := d.environments.CreateEnvironment(r.Context(), &dsecv1.CreateEnvironmentRequest{Environment: e, Replace: true}); err != nil {
			return err
		}
	}
	writeJSON(w, http.StatusCreated, map[string]any{"buildID": buildIDOf(found), "tags": append([]string{}, in.Tags...)})
	return nil
}

func (d *Door) removeTags(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Name string
		Tags []string
	}
	if err := readJSON(r, &in); err != nil {
		return err
	}
	if err := checkTags(in.Name, in.Tags); err != nil {
		return err
	}
	for _, full := range tagged(in.Name, in.Tags) {
		if found, _, err := d.environmentNamed(r, full); err != nil {
			return err
		} else if found == nil {
			return refused(http.StatusNotFound, "template %.100q was not found", full)
		}
	}
	for _, full := range tagged(in.Name, in.Tags) {
		if _, err := d.environments.DeleteEnvironment(r.Context(), &dsecv1.DeleteEnvironmentRequest{Name: full}); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// patchTemplate takes what is so already: everybody with a key of this service may use its templates.
func (d *Door) patchTemplate(w http.ResponseWriter, r *http.Request) error {
	var in struct{ Public *bool }
	if err := readJSON(r, &in); err != nil {
		return err
	}
	t, err := d.templateNamed(r, r.PathValue("id"))
	if err != nil {
		return err
	}
	if in.Public != nil && !*in.Public {
		return unsupported("public: false: every key of this service may use every template")
	}
	writeJSON(w, http.StatusOK, map[string]any{"names": t.Names})
	return nil
}

// checkTags refuses what cannot be a name with tags.
func checkTags(name string, tags []string) error {
	for _, full := range append([]string{name}, tagged(name, tags)...) {
		if err := layer.CheckName(full); err != nil {
			return refused(http.StatusBadRequest, "%v", err)
		}
	}
	for _, t := range tags {
		if strings.ContainsAny(t, ":/") {
			return refused(http.StatusBadRequest, "tag %.100q has a colon or slash", t)
		}
	}
	return nil
}

func tagged(name string, tags []string) []string {
	out := make([]string, len(tags))
	for k, t := range tags {
		out[k] = name + ":" + t
	}
	return out
}

package apiserver

import (
	"context"
	"fmt"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

func (l layerService) VerifyLayer(ctx context.Context, r *dsecv1.VerifyLayerRequest) (*dsecv1.VerifyLayerResponse, error) {
	out, err := l.s.verifyLayer(ctx, r)
	if err != nil {
		return nil, connectError(err)
	}
	return out, nil
}

// verifyLayer looks at all layers of a version, and says of all that are damaged how.
func (s *Server) verifyLayer(ctx context.Context, r *dsecv1.VerifyLayerRequest) (*dsecv1.VerifyLayerResponse, error) {
	if s.importer == nil {
		return nil, errNoImporter
	}
	found, _, err := s.o.Catalogue.Get(ctx, r.GetKind(), r.GetReference())
	if err != nil {
		return nil, err
	}
	out, stack := &dsecv1.VerifyLayerResponse{Layer: found}, stackOf(found)
	var damage []string
	for _, d := range stack {
		v, err := s.importer.Store.VerifyStored(ctx, &dsecv1.VerifyStoredRequest{Digest: d})
		if err != nil {
			return nil, s.importer.failed(err)
		}
		out.Bytes += v.GetBytes()
		if v.GetDamage() == "" {
			continue
		}
		damage = append(damage, v.GetDamage())
		n, err := s.o.Catalogue.ForgetStepsOf(ctx, d)
		if err != nil {
			return nil, err
		}
		s.o.Log.WarnContext(ctx, "layer is damaged in the store", "name", found.GetName(), "version", found.GetVersion(), "digest", d,
			"damage", v.GetDamage(), "forgotten_steps", n)
	}
	if len(damage) > 0 {
		return nil, fmt.Errorf("%w: %d of %d layers of %s@%s are damaged in the store: %s; %s", sandbox.ErrUnavailable, len(damage), len(stack),
			found.GetName(), found.GetVersion(), strings.Join(damage, "; "), remedy(found))
	}
	return out, nil
}

// remedy says how what a version is made of comes into the store again.
func remedy(l *dsecv1.Layer) string {
	verb, from := "image import", l.GetSource()
	if l.GetKind() != dsecv1.LayerKind_LAYER_KIND_BASE {
		verb = "layer import --" + strings.ToLower(strings.TrimPrefix(l.GetKind().String(), "LAYER_KIND_"))
	}
	switch {
	case strings.HasPrefix(from, "pack:"):
		return fmt.Sprintf("to mend it, pack sandbox %s again as %s, where its changes are still the same; else remove this version: dsec layer rm",
			strings.TrimPrefix(from, "pack:"), l.GetName())
	case len(l.GetBelow()) > 0:
		return fmt.Sprintf("to mend it, import again what it is FROM, and build %s again (dsec image build; the steps that made these layers are done anew)", l.GetName())
	case strings.HasPrefix(from, "docker://") && l.GetKind() == dsecv1.LayerKind_LAYER_KIND_BASE:
		return fmt.Sprintf("to mend it, import it again: dsec %s %s --name %s", verb, from, l.GetName())
	case strings.HasPrefix(from, "docker://"):
		return fmt.Sprintf("to mend it, import it again: dsec %s %s %s", verb, l.GetName(), from)
	case from == "":
		from = "what it was made of"
	}
	if l.GetKind() == dsecv1.LayerKind_LAYER_KIND_BASE {
		verb += ", or dsec layer import --base"
	}
	return fmt.Sprintf("to mend it, bring the same content in again as it came (dsec %s, from %s)", verb, from)
}

package memory_test

import (
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/store/memory"
)

func TestStore(t *testing.T) {
	stores := map[*testing.T]map[string]*memory.Store{}
	layertest.RunStore(t, func(t *testing.T, name string) layer.Store {
		if stores[t] == nil {
			stores[t] = map[string]*memory.Store{}
		}
		if stores[t][name] == nil {
			stores[t][name] = &memory.Store{}
		}
		return stores[t][name]
	})
}

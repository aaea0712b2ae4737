package e2b

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// networkConfig is what clients say of the network, at creation and in updates.
type networkConfig struct {
	AllowPublicTraffic  *bool          `json:"allowPublicTraffic,omitempty"`
	AllowOut            []string       `json:"allowOut,omitempty"`
	DenyOut             []string       `json:"denyOut,omitempty"`
	Rules               map[string]any `json:"rules,omitempty"`
	EgressProxy         map[string]any `json:"egressProxy,omitempty"`
	MaskRequestHost     string         `json:"maskRequestHost,omitempty"`
	HTTPSPorts          []any          `json:"httpsPorts,omitempty"`
	AllowInternetAccess *bool          `json:"allow_internet_access,omitempty"` // in updates
}

func none() []*dsecv1.NetworkRule { return []*dsecv1.NetworkRule{{Target: "none", Allow: true}} }

func open() *dsecv1.NetworkRule { return &dsecv1.NetworkRule{Target: "open", Allow: true} }

// isDefaultNetwork tells rules that nobody asked for.
func isDefaultNetwork(rules []*dsecv1.NetworkRule) bool {
	return len(rules) == 1 && rules[0].GetTarget() == "open"
}

// rules translates. There the internet is open unless somebody says otherwise, and what is allowed beats what is denied; a
// name that is allowed means something only where everything is denied. Here a rule that denies wins. internet tells
// whether it is open. Error: 400 for what has no equal here.
func (n *networkConfig) rules(internetAccess *bool) (rules []*dsecv1.NetworkRule, internet bool, err error) {
	if n == nil {
		n = &networkConfig{}
	}
	switch {
	case len(n.Rules) > 0:
		return nil, false, unsupported("network.rules (changing requests on their way)")
	case len(n.EgressProxy) > 0:
		return nil, false, unsupported("network.egressProxy")
	case n.MaskRequestHost != "":
		return nil, false, unsupported("network.maskRequestHost")
	case len(n.HTTPSPorts) > 0:
		return nil, false, unsupported("network.httpsPorts")
	}
	internet = internetAccess == nil || *internetAccess
	if slices.ContainsFunc(n.DenyOut, isEverything) {
		internet = false
	}
	if slices.ContainsFunc(n.AllowOut, isEverything) {
		internet = true
	}
	if internet {
		rules = append(rules, open())
	}
	for _, a := range n.AllowOut {
		p, isAddr := prefixOf(a)
		if isEverything(a) || !isAddr && internet {
			continue // there a name has no effect while everything is open
		}
		if isAddr && internet {
			for _, x := range n.DenyOut {
				if q, ok := prefixOf(x); ok && p.Overlaps(q) {
					return nil, false, unsupported("allowOut %s inside of denyOut %s while the internet is open: here what is denied stays denied; deny 0.0.0.0/0 and allow what is wanted", a, x)
				}
			}
		}
		rules = append(rules, &dsecv1.NetworkRule{Target: a, Allow: true})
	}
	for _, x := range n.DenyOut {
		switch _, isAddr := prefixOf(x); {
		case !isAddr:
			return nil, false, refused(http.StatusBadRequest, "denyOut %.100q: want an address or a range; names cannot be denied", x)
		case internet && !isEverything(x):
			rules = append(rules, &dsecv1.NetworkRule{Target: x})
		}
	}
	if len(rules) == 0 {
		return none(), false, nil // and not the defaults of the environment
	}
	return rules, internet, nil
}

func isEverything(s string) bool { return s == "0.0.0.0/0" || s == "::/0" }

func prefixOf(s string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, true
	}
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	return netip.Prefix{}, false
}

func (d *Door) setNetwork(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	var in networkConfig
	if err := readJSON(r, &in); err != nil {
		return err
	}
	rules, _, err := in.rules(in.AllowInternetAccess)
	if err != nil {
		return err
	}
	if _, err := d.sandboxes.SetNetwork(r.Context(), &dsecv1.SetNetworkRequest{SandboxId: b.GetId(), Rules: rules}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// networkView is the network of a sandbox in the words of clients, and whether the internet is open to it.
func networkView(b *dsecv1.Sandbox) (networkConfig, bool) {
	public := b.GetSpec().GetLabels()[labelPrivate] != "true"
	out, internet := networkConfig{AllowPublicTraffic: &public}, false
	for _, rule := range b.GetNetwork().GetRules() {
		switch t := rule.GetTarget(); {
		case t == "open":
			internet = true
		case t == "none":
		case rule.GetAllow():
			out.AllowOut = append(out.AllowOut, t)
		default:
			out.DenyOut = append(out.DenyOut, t)
		}
	}
	if !internet {
		out.DenyOut = append(out.DenyOut, "0.0.0.0/0")
	}
	return out, internet
}

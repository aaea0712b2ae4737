package datapath

// Capabilities are what a datapath does beyond what all do. What is absent costs comfort or speed, never closedness.
type Capabilities struct {
	// DenialEvents: Events tells of single denials; else they are counted only.
	DenialEvents bool `json:"denial_events"`
	// EndedEvents: Events tells of the ends of flows, with their bytes.
	EndedEvents bool `json:"ended_events"`
	// EarlyRefusal: connect and sendto of a program inside fail at once with EPERM; else by a refusal from the link,
	// which reads as "connection refused" or "no route".
	EarlyRefusal bool `json:"early_refusal"`
	// Neighbours: ARP and ND for the gateway are answered, and checked. Else they are dropped, and the gateway is a static
	// neighbour, which root inside can lose.
	Neighbours bool `json:"neighbours"`
	// EveryReason: each packet that is not let through is counted under its own reason; else some are dropped by the kernel
	// before rules see them, or found to be wrong in another way first.
	EveryReason bool `json:"every_reason"`
	// QuickChanges: Attach, Set, Learn and Clear take microseconds; else tens of milliseconds each.
	QuickChanges bool `json:"quick_changes"`
}

// Lacks says what is absent, in the words of `dsec status`.
func (c Capabilities) Lacks() []string {
	var out []string
	for _, l := range []struct {
		have bool
		what string
	}{
		{c.DenialEvents, "events of single denials"},
		{c.EndedEvents, "events of ended connections"},
		{c.EarlyRefusal, "refusals by EPERM"},
		{c.Neighbours, "answers to ARP and ND"},
		{c.EveryReason, "the reason of every denial"},
		{c.QuickChanges, "quick changes of rules"},
	} {
		if !l.have {
			out = append(out, l.what)
		}
	}
	return out
}

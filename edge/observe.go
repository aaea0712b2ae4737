package edge

import "time"

// Observe adds a duration to a stage of work, for GetNode: drivers tell what their parts of a creation cost.
func (e *Edge) Observe(stage string, d time.Duration) { e.stages.add(stage, d) }

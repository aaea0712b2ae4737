package kernel

// Plan is what the machine does; it finds it as PlanFile on the disk with the tests.
type Plan struct {
	Source  string `json:"source"`  // where the disk with the tests is mounted: the path of the source tree
	Cache   string `json:"cache"`   // where the disk with the layers is mounted
	Scratch string `json:"scratch"` // where the empty disk is mounted: nodes' state lies there
	Tests   []Test `json:"tests"`
}

// Test is one test binary.
type Test struct {
	Package string   `json:"package"` // and which part of its tests, if not all
	Binary  string   `json:"binary"`
	Dir     string   `json:"dir"` // working directory: the package's
	Args    []string `json:"args"`
	Env     []string `json:"env"`
}

// PlanFile is the plan's name on the disk with the tests.
const PlanFile = "kernel-plan.json"

// Marker begins each line by which the machine tells the host how far it is; no test prints it.
const Marker = "@@dsec-kernel "

// What follows the marker.
const (
	Booted  = "booted"  // and the kernel's version
	Started = "started" // and a package
	Ended   = "ended"   // a package, its exit code, and the seconds it took
	Done    = "done"    // all tests have run
)

// Paths in the machine.
const (
	ModuleDir = "/modules" // in the initial file system: NAME.ko, loaded in the order of their names
	RootDisk  = "/dev/vda"
	TestDisk  = "/dev/vdb"
	LayerDisk = "/dev/vdc"
	Scratch   = "/dev/vdd"
	Channel   = "/dev/hvc0" // markers and the tests' output, apart from the kernel's messages
)

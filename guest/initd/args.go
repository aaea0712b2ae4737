package initd

import "strconv"

// Args are the arguments of a container's dsec-init; see the package's documentation.
type Args struct {
	Stage   string // an empty directory on the host
	Tasks   []int  // descriptors of cgroup v1 tasks files, open for writing
	Seccomp int    // descriptor of the commands' filter, a raw BPF program; -1 = none
	Profile string // AppArmor profile of commands, loaded already; "" = none
	Group   int    // descriptor of the v2 group to move to, once the present one is the namespace's root; 0 = stay
}

// List returns the arguments as dsec-init takes them, without the program's name.
func (a *Args) List() []string {
	l := []string{"container", "-stage", a.Stage}
	if len(a.Tasks) > 0 {
		list := ""
		for _, fd := range a.Tasks {
			list += strconv.Itoa(fd) + ","
		}
		l = append(l, "-tasks", list[:len(list)-1])
	}
	if a.Seccomp >= 0 {
		l = append(l, "-seccomp", strconv.Itoa(a.Seccomp))
	}
	if a.Profile != "" {
		l = append(l, "-apparmor", a.Profile)
	}
	if a.Group > 0 {
		l = append(l, "-group", strconv.Itoa(a.Group))
	}
	return l
}

// Environ is the environment of dsec-init: nothing but what tunes Go's runtime for a process that must stay
// small. Its signals are not Go's, so that preemption by signal is off.
func Environ() []string {
	return []string{"GOMAXPROCS=1", "GOGC=20", "GODEBUG=asyncpreemptoff=1"}
}

package main

import (
	"path/filepath"

	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/backend/microvm/kernel"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/internal/linux/feature"
)

// doctorNode is the node that doctor is asked about.
type doctorNode struct {
	dir  stateDir
	runs bool
	opts map[string]string // that it was started with; none where it does not run
}

// runningNode finds the node of a state directory.
func runningNode(state string) (n doctorNode) {
	abs, err := filepath.Abs(state)
	if err != nil {
		return n
	}
	n.dir = stateDir(abs)
	up, err := n.dir.readUp()
	if err != nil {
		return n // no node: nothing is asked for
	}
	if n.opts, err = parsePairs("--opt", up.Opts, nil); err == nil {
		n.runs = holder(n.dir.path("lock")) != 0
	}
	return n
}

// machineKernel tells which kernel the node's microVMs boot.
func (n doctorNode) machineKernel() feature.Result {
	r := feature.Result{Name: "kernel of microVMs", Level: feature.Wanted, Since: "dsec kernel install"}
	k, err := chooseKernel(n.opts["kernel"])
	if r.Have = err == nil; !r.Have {
		r.Detail, r.Lost = err.Error(), "no microVMs"
		return r
	}
	r.Detail = kernelText(k)
	if asked := n.opts["kernel"]; n.runs && asked != "" {
		r.Detail += " (the node's --opt kernel=" + asked + ")"
	}
	if taken, ok := microvm.TakenKernel(string(n.dir)); ok && n.runs && taken.Dir != k.Dir {
		r.Detail += "; the node's microVMs boot " + taken.Version + " in " + taken.Dir + " until its edge starts again"
	}
	if k.Own {
		if d, err := debkernel.Find(&debkernel.Options{Cache: kernelDir()}); err == nil && debkernel.CompareVersions(k.Version, d.Version) < 0 {
			r.Detail += "; Debian's is newer, " + d.Version + ": dsec kernel build --update"
		}
	} else if own := kernel.List(cacheDir()); len(own) > 0 {
		last := own[len(own)-1]
		if why := kernel.Unfit(last); why != "" {
			r.Detail += "; built: " + last.Version + ", " + why + ": dsec kernel build"
		} else {
			r.Detail += "; built: " + last.Version + " (--opt kernel=own)"
		}
	}
	return r
}

// machineMemory tells whether the node's microVMs can share the node's memory of their layers.
func (n doctorNode) machineMemory() feature.Result {
	r := feature.Result{Name: "layers as memory of microVMs", Level: feature.Wanted, Since: "--opt microvm-layers=pmem", Detail: "virtio-pmem, DAX",
		Lost: "each microVM has a copy of what it reads of its layers"}
	k, err := chooseKernel(n.opts["kernel"])
	if err != nil {
		r.Detail = "no kernel"
		return r
	}
	if lack := microvm.LacksForMemory(k); lack != "" {
		r.Detail = "kernel " + k.Version + " lacks " + lack
		return r
	}
	r.Have, r.Lost = true, ""
	return r
}

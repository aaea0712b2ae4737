package kernel

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestReport reads what a machine says: tests that pass and fail, and one that the machine's end cut off.
func TestReport(t *testing.T) {
	channel := strings.Join([]string{
		"noise before the first marker",
		Marker + "booted 6.12.1-cloud-amd64", Marker + "started a/b",
		"=== RUN   TestOne", "--- PASS: TestOne (0.01s)", "    --- FAIL: TestTwo/sub (0.01s)", "--- SKIP: TestThree (0.00s)",
		Marker + "ended a/b 1 2.5", Marker + "started a/c", "--- PASS: TestFour (1.00s)", endOfChannel, "what comes after the end",
	}, "\r\n") + "\n"
	r := &Report{}
	lines(strings.NewReader(channel), r.tell)
	if r.Kernel != "6.12.1-cloud-amd64" || len(r.Results) != 2 || r.Done || r.OK() {
		t.Fatalf("%+v", r)
	}
	a, b := r.Results[0], r.Results[1]
	if !a.Ended || a.Code != 1 || a.Seconds != 2.5 || !slices.Equal(a.Failed, []string{"TestTwo/sub"}) ||
		!slices.Equal(a.Passed, []string{"TestOne"}) || !slices.Equal(a.Skips, []string{"TestThree"}) || len(a.Output) != 4 {
		t.Errorf("%+v", a)
	}
	if b.Ended || b.OK() || len(b.Output) != 1 {
		t.Errorf("%+v", b)
	}
	var out bytes.Buffer
	r.Print(&out)
	for _, want := range []string{"FAIL a/b  2s  1 passed, 1 failed, 1 skipped", "CUT  a/c"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, &out)
		}
	}
	r = &Report{}
	lines(strings.NewReader(Marker+"started x\n"+Marker+"ended x 0 0.1\n"+Marker+"done\n"), r.tell)
	if !r.OK() {
		t.Errorf("%+v", r.Results[0])
	}
}

func TestMachineArguments(t *testing.T) {
	m := &machine{kernel: "K", initrd: "I", root: "R", tests: "T", layers: "L", scratch: "S", console: "C", channel: "H", memory: "4G", cpus: 2}
	got := strings.Join(m.args(), " ")
	want := "-M q35 -accel tcg,thread=single -cpu max,-erms -smp 2 -m 4G -nodefaults -no-user-config -display none -no-reboot " +
		"-chardev file,id=console,path=C -serial chardev:console -chardev pipe,id=channel,path=H " +
		"-device virtio-serial-pci -device virtconsole,chardev=channel -kernel K -initrd I -append " + commandLine +
		" -drive if=none,format=raw,cache=unsafe,snapshot=on,id=d0,file=R -device virtio-blk-pci,drive=d0" +
		" -drive if=none,format=raw,cache=unsafe,snapshot=on,id=d1,file=T -device virtio-blk-pci,drive=d1" +
		" -drive if=none,format=raw,cache=unsafe,snapshot=on,id=d2,file=L -device virtio-blk-pci,drive=d2" +
		" -drive if=none,format=raw,cache=unsafe,discard=unmap,id=scratch,file=S -device virtio-blk-pci,drive=scratch"
	if got != want {
		t.Errorf("arguments\n%s\nwant\n%s", got, want)
	}
	m.kvm = true
	if got := strings.Join(m.args(), " "); !strings.Contains(got, "-accel kvm ") {
		t.Error(got)
	}
}

// TestShares: no package below the folders that are tested on the other kernel is left out.
func TestShares(t *testing.T) {
	list := func(packages ...string) []string {
		cmd := exec.Command("go", append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}"}, packages...)...)
		cmd.Dir = "../../.."
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	var packages []string
	for _, machine := range Shares {
		for _, s := range machine {
			packages = append(packages, s.Packages...)
		}
	}
	have := list(packages...)
	for _, want := range list("./internal/linux/...", "./policy/confine", "./backend/container/...", "./guest/...") {
		if !slices.Contains(have, want) {
			t.Errorf("%s is in no share", want)
		}
	}
}

package confine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/opendsec/dsec/internal/linux/feature"
)

// Profile is an AppArmor profile: what is not named is allowed for files and networks, and denied for everything
// else. It holds against root inside, whatever capabilities that has.
type Profile struct {
	Caps   []string   // capabilities that may be used
	Denied []FileRule // files
}

// FileRule denies an access ("rwklx") to the files that a glob of AppArmor's matches.
type FileRule struct{ Path, Access string }

// DefaultProfile is that of every sandbox.
func DefaultProfile() *Profile {
	p := &Profile{
		// The bounding set that dsec-init leaves to commands.
		Caps: []string{"chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service",
			"net_raw", "sys_chroot", "mknod", "audit_write", "setfcap"},
	}
	const all, change = "rwklx", "wklx"
	// The node's memory, keys and switches, which the masks cover too.
	for _, f := range []string{"kcore", "kmem", "mem", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "sysrq-trigger", "keys", "kallsyms",
		"acpi/**", "scsi/**"} {
		p.Denied = append(p.Denied, FileRule{"/proc/" + f, all})
	}
	for _, f := range []string{"sys/**", "bus/**", "fs/**", "irq/**", "*/attr/**", "*/task/*/attr/**"} {
		p.Denied = append(p.Denied, FileRule{"/proc/" + f, change})
	}
	p.Denied = append(p.Denied, FileRule{"/sys/**", change})
	for _, f := range []string{"firmware/**", "kernel/security/**", "kernel/debug/**", "kernel/tracing/**", "fs/bpf/**"} {
		p.Denied = append(p.Denied, FileRule{"/sys/" + f, all})
	}
	for _, f := range []string{"mem", "kmem", "port", "kmsg", "sd*", "vd*", "nvme*", "loop*", "dm-*", "mapper/**", "btrfs-control", "kvm"} {
		p.Denied = append(p.Denied, FileRule{"/dev/" + f, all})
	}
	return p
}

// Name names the profile by its content: an upgrade never changes what holds for sandboxes that run.
func (p *Profile) Name() string {
	sum := sha256.Sum256([]byte(p.text("NAME")))
	return fmt.Sprintf("dsec-%x", sum[:4])
}

// Text is the profile in AppArmor's language.
func (p *Profile) Text() string { return p.text(p.Name()) }

func (p *Profile) text(name string) string {
	var b strings.Builder
	// A sandbox's files lie on mounts that the host's root does not reach, and descriptors come from outside.
	fmt.Fprintf(&b, "profile %s flags=(attach_disconnected,mediate_deleted) {\n", name)
	b.WriteString("  file,\n  network,\n  unix,\n")
	for _, c := range p.Caps {
		fmt.Fprintf(&b, "  capability %s,\n", c)
	}
	// Its own processes, and the host's towards it; never it towards others.
	fmt.Fprintf(&b, "  signal (send, receive) peer=%s,\n  signal (receive) peer=unconfined,\n", name)
	fmt.Fprintf(&b, "  ptrace (trace, read, tracedby, readby) peer=%s,\n  ptrace (readby) peer=unconfined,\n", name)
	b.WriteString("  deny mount,\n  deny remount,\n  deny umount,\n  deny pivot_root,\n")
	for _, f := range p.Denied {
		fmt.Fprintf(&b, "  deny %s %s,\n", f.Path, f.Access)
	}
	b.WriteString("}\n")
	return b.String()
}

// appArmorProfiles lists what the kernel enforces.
const appArmorProfiles = "/sys/kernel/security/apparmor/profiles"

// HaveAppArmor returns nil where profiles can be loaded, else a *feature.Missing.
func HaveAppArmor() error { return feature.Have("AppArmor") }

// Load loads the profile into the kernel unless it is there, and returns its name. Error: a *feature.Missing
// (sandbox.ErrUnsupported) where there is no AppArmor.
func (p *Profile) Load(ctx context.Context) (string, error) {
	if err := HaveAppArmor(); err != nil {
		return "", err
	}
	name := p.Name()
	loaded, err := loadedProfiles()
	if err != nil {
		return "", err
	}
	if slices.Contains(loaded, name) {
		return name, nil
	}
	cmd := exec.CommandContext(ctx, "apparmor_parser", "--replace", "--skip-cache")
	cmd.Stdin = strings.NewReader(p.Text())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("load AppArmor profile %s: %w: %s", name, err, strings.TrimSpace(out.String()))
	}
	if loaded, err = loadedProfiles(); err == nil && !slices.Contains(loaded, name) {
		err = errors.New("the kernel does not list it")
	}
	if err != nil {
		return "", fmt.Errorf("load AppArmor profile %s: %w", name, err)
	}
	return name, nil
}

// loadedProfiles are the names of the profiles that the kernel enforces.
func loadedProfiles() ([]string, error) {
	b, err := os.ReadFile(appArmorProfiles)
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutSuffix(strings.TrimSpace(line), " (enforce)"); ok {
			out = append(out, name)
		}
	}
	return out, nil
}

package main

import (
	"fmt"
	"os"

	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/layer/disk"
	"github.com/spf13/cobra"
)

// diskFlags say that an image is a disk of a full virtual machine.
type diskFlags struct {
	disk     bool
	firmware string
	agent    bool
}

func (f *diskFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.disk, "disk", false, "SOURCE is a disk, raw or qcow2, for --backend fullvm")
	cmd.Flags().StringVar(&f.firmware, "firmware", "bios", "what starts a machine from the disk: bios or uefi")
	cmd.Flags().BoolVar(&f.agent, "agent", false, "the disk's system starts an agent (hack/fullvm-agent.sh): wait for it in creations")
}

// apply makes an upload that of a disk, if it is one. What can be seen to be refused is not sent.
func (f *diskFlags) apply(cmd *cobra.Command, source string, up *client.Upload) error {
	if !f.disk {
		for _, name := range []string{"firmware", "agent"} {
			if cmd.Flags().Changed(name) {
				return &exitError{2, fmt.Errorf("--%s goes with --disk", name)}
			}
		}
		return nil
	}
	if _, err := disk.ParseFirmware(f.firmware); err != nil {
		return &exitError{2, fmt.Errorf("--%w", err)}
	}
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("disk %s: it is no file", source)
	}
	if !compressed(file) { // else blobd sees first what it is
		if _, err := disk.Open(file, st.Size()); err != nil {
			return err
		}
	}
	up.Format, up.Firmware, up.Agent = "disk", f.firmware, f.agent
	return nil
}

// compressed tells whether a file is one that blobd unpacks: gzip or zstd.
func compressed(f *os.File) bool {
	var b [4]byte
	_, err := f.ReadAt(b[:], 0)
	return err == nil && (string(b[:2]) == "\x1f\x8b" || string(b[:]) == "\x28\xb5\x2f\xfd")
}

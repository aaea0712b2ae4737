package microvm

import (
	"strings"
	"testing"
)

// TestArguments: the same specification makes the same machine everywhere.
func TestArguments(t *testing.T) {
	h := &hardware{jail: "J", boot: bootImage{kernel: "K", initrd: "I"}, tscKHz: 2400000, cpus: 2, memory: 256 << 20,
		layers: []layerFiles{{meta: "/a,b.meta", data: "/a,b.data"}, {meta: "/c.meta"}}}
	const head = "-M microvm,rtc=on,memory-backend=ram -global virtio-mmio.force-legacy=false -accel ACCEL -cpu max -smp 2 -m 256M " +
		"-nodefaults -no-user-config -display none -no-reboot -no-shutdown " +
		"-sandbox on,obsolete=deny,elevateprivileges=allow,spawn=deny,resourcecontrol=deny -chroot J -runas 2147472876:2147472876 " +
		"-chardev ringbuf,id=console,size=65536 -serial chardev:console " +
		"-chardev socket,id=qmp,server=on,wait=off,path=qmp -mon chardev=qmp,mode=control " +
		"-chardev socket,id=control,server=on,wait=off,path=control -chardev socket,id=channel,server=on,wait=off,path=channel " +
		"-device virtio-serial-device,max_ports=3 -device virtserialport,chardev=control,name=dsec.control " +
		"-device virtserialport,chardev=channel,name=dsec.channel " +
		"-netdev hubport,id=nic,hubid=0 -device virtio-net-device,netdev=nic,guest_announce=off,mac=02:d5:ec:00:00:00 -kernel K -initrd I " +
		"-append console=ttyS0 reboot=t panic=-1 quiet loglevel=4 tsc=reliable no_timer_check 8250.nr_uarts=1 random.trust_cpu=on rdinit=/init"
	const disks = ` -object {"id":"ram","qom-type":"memory-backend-ram","size":268435456} -blockdev {"driver":"raw","file":{"driver":"file","filename":"/a,b.meta","locking":"off","read-only":true},"node-name":"m0","read-only":true}` +
		` -device virtio-blk-device,drive=m0,serial=m0` +
		` -blockdev {"driver":"raw","file":{"driver":"file","filename":"/a,b.data","locking":"off","read-only":true},"node-name":"d0","read-only":true}` +
		` -device virtio-blk-device,drive=d0,serial=d0` +
		` -blockdev {"driver":"raw","file":{"driver":"file","filename":"/c.meta","locking":"off","read-only":true},"node-name":"m1","read-only":true}` +
		` -device virtio-blk-device,drive=m1,serial=m1` +
		` -blockdev {"cache":{"direct":false,"no-flush":true},"discard":"unmap","driver":"raw","file":{"cache":{"direct":false,"no-flush":true},` +
		`"discard":"unmap","driver":"file","filename":"disk.raw","locking":"off"},"node-name":"disk","read-only":false}` +
		` -device virtio-blk-device,drive=disk,serial=disk`
	for accel, tsc := range map[string]string{"tcg,thread=single,tb-size=64": " norandmaps mitigations=off tsc_early_khz=2400000", "kvm": ""} {
		h.kvm = accel == "kvm"
		want := strings.Replace(head, "ACCEL", accel, 1) + tsc + " -- machine" + disks
		if got := strings.Join(h.args(), " "); got != want {
			t.Errorf("arguments\n%s\nwant\n%s", got, want)
		}
	}
	h.kvm, h.layers, h.slots, h.ram = true, nil, 1, "/r,am"
	made := strings.Join(h.args(), " ")
	for _, want := range []string{
		"-M microvm,rtc=on,memory-backend=ram ", ` -object {"id":"ram","mem-path":"/r,am","qom-type":"memory-backend-file","share":true,"size":268435456} `,
		` -blockdev {"driver":"null-co","node-name":"d0","read-only":true,"read-zeroes":true,"size":68719476736} -device virtio-blk-device,id=d0,drive=d0,serial=d0 `,
		` -blockdev {"driver":"null-co","node-name":"disk","read-only":false,"read-zeroes":true,"size":68719476736} -device virtio-blk-device,id=disk,drive=disk,serial=disk`,
	} {
		if !strings.Contains(made, want) {
			t.Errorf("a template's arguments\n%s\nwithout %s", made, want)
		}
	}
	h.clone = true
	if got, want := strings.Join(h.args(), " "), strings.NewReplacer(`"share":true`, `"share":false`, " -blockdev", " -incoming defer -blockdev").Replace(made); strings.Replace(got, " -incoming defer", "", 1) != strings.ReplaceAll(want, " -incoming defer", "") || !strings.Contains(got, " -incoming defer ") {
		t.Errorf("a clone's arguments\n%s\nof a template's\n%s", got, made)
	}
	h.clone, h.layers = false, []layerFiles{{meta: "/a.meta", data: "/a.data"}, {meta: "/c.meta"}}
	if h.disks() != 4 {
		t.Errorf("%d disks", h.disks())
	}
}

# A system of one sector: it says on screen and serial port what its disk's second sector holds, then what is typed.
# Enter writes the line to that sector. Escape switches the machine off, Ctrl-P tells it that the system panicked.
#
#   as --32 boot.asm -o boot.o && ld -m elf_i386 -Ttext 0x7c00 --oformat binary boot.o -o boot.bin
.code16
.globl _start
_start:
	cli
	xor %ax, %ax
	mov %ax, %ds
	mov %ax, %es
	mov %ax, %ss
	mov $0x7c00, %sp
	sti
	cld
	mov %dl, drive
	mov $3, %ax		# text, 80 by 25
	int $0x10
	mov $0x00e3, %ax	# 9600 baud
	xor %dx, %dx
	int $0x14
	mov $greeting, %si
	call say
	mov $0x0201, %ax	# read sector 2 to 0x8000
	call sector
	mov $0x8000, %si
	call say
	mov $newline, %si
	call say
	mov $0x8000, %di
again:
	xor %ah, %ah		# a key
	int $0x16
	cmp $27, %al
	je off
	cmp $16, %al
	je panic
	cmp $13, %al
	je enter
	test %al, %al
	jz again
	stosb
	call put
	jmp again
enter:
	xor %al, %al
	stosb
	mov $0x0301, %ax	# write
	call sector
	mov $newline, %si
	call say
	mov $stored, %si
	call say
	mov $0x8000, %di
	jmp again
off:
	mov $0x604, %dx
	mov $0x2000, %ax
	out %ax, %dx
	hlt
panic:
	mov $0x505, %dx
	mov $1, %al
	out %al, %dx
	hlt
sector:
	mov $0x8000, %bx
	mov $2, %cx		# cylinder 0, sector 2
	xor %dh, %dh
	mov drive, %dl
	int $0x13
	ret
say:
	lodsb
	test %al, %al
	jz 1f
	call put
	jmp say
1:	ret
put:
	push %ax
	mov $0x0e, %ah
	mov $7, %bx
	int $0x10
	pop %ax
	mov $1, %ah
	xor %dx, %dx
	int $0x14
	ret
drive:	.byte 0
greeting: .asciz "ready: "
newline: .asciz "\r\n"
stored:	.asciz "stored\r\n"
	.org 510
	.word 0xaa55

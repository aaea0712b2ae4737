#include "textflag.h"

// Offsets in state and op; see nursery.go.
#define S_WORD 0
#define S_OPS 8
#define S_END 16
#define S_CLONED 24
#define S_FAILED 32
#define S_EVENTFD 40
#define S_ONE 48
#define OP_NR 0
#define OP_FLAGS 4
#define OP_ARGS 8
#define OP_RESULT 56
#define OP_SIZE 64

DATA allsignals<>+0(SB)/8, $0xffffffffffffffff
GLOBL allsignals<>(SB), RODATA, $8
DATA one<>+0(SB)/8, $1
GLOBL one<>(SB), RODATA, $8

// func spawn(flags, stack uintptr, st *state) int64
// All signals are blocked across the clone, so that the new thread never runs a handler.
TEXT ·spawn(SB), NOSPLIT, $16-32
	MOVQ $14, AX // rt_sigprocmask
	MOVQ $2, DI
	LEAQ allsignals<>(SB), SI
	LEAQ 0(SP), DX
	MOVQ $8, R10
	SYSCALL
	MOVQ st+16(FP), R12
	MOVQ flags+0(FP), DI
	MOVQ stack+8(FP), SI
	XORQ DX, DX
	XORQ R10, R10
	XORQ R8, R8
	MOVQ $56, AX // clone
	SYSCALL
	TESTQ AX, AX
	JEQ  thread
	MOVQ AX, ret+24(FP)
	MOVQ $14, AX
	MOVQ $2, DI
	LEAQ 0(SP), SI
	XORQ DX, DX
	MOVQ $8, R10
	SYSCALL
	RET
thread:
	JMP interpret<>(SB)

// interpret is the thread's whole life. R12 = state, R13 = step, R14 = end, R15 = 1 in a forked child.
// It uses no stack: a forked child shares the thread's.
TEXT interpret<>(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
wait:
	MOVL S_WORD(R12), AX
	CMPL AX, $1
	JEQ  work
	MOVQ R12, DI // futex(word, FUTEX_WAIT_PRIVATE, 0, nil)
	MOVQ $128, SI
	XORQ DX, DX
	XORQ R10, R10
	MOVQ $202, AX
	SYSCALL
	JMP  wait
work:
	XORQ R15, R15
	MOVQ S_OPS(R12), R13
	MOVQ S_END(R12), R14
step:
	CMPQ R13, R14
	JCC  done
	MOVL OP_NR(R13), AX
	MOVQ (OP_ARGS+0)(R13), DI
	MOVQ (OP_ARGS+8)(R13), SI
	MOVQ (OP_ARGS+16)(R13), DX
	MOVQ (OP_ARGS+24)(R13), R10
	MOVQ (OP_ARGS+32)(R13), R8
	MOVQ (OP_ARGS+40)(R13), R9
	SYSCALL
	MOVL OP_FLAGS(R13), BX
	TESTL $2, BX
	JNE  forked
	MOVQ AX, OP_RESULT(R13)
	CMPQ AX, $0xfffffffffffff001
	JCS  next
	TESTL $1, BX
	JNE  next
fail:
	MOVQ R13, S_FAILED(R12)
	JMP  done
next:
	ADDQ $OP_SIZE, R13
	JMP  step
forked:
	TESTQ AX, AX
	JEQ  child
	MOVQ AX, OP_RESULT(R13)
	TESTL $4, BX
	JNE  nested
	MOVQ AX, S_CLONED(R12)
	CMPQ AX, $0xfffffffffffff001
	JCC  fail
	JMP  done
nested: // the child of a child: its parent goes on behind the child's steps
	CMPQ AX, $0xfffffffffffff001
	JCC  fail
	ADDQ (OP_ARGS+40)(R13), R13
	JMP  step
child:
	MOVQ $1, R15
	JMP  next
done:
	TESTQ R15, R15
	JNE  exit
	XORL AX, AX
	XCHGL AX, S_WORD(R12)
	MOVQ S_EVENTFD(R12), DI
	LEAQ S_ONE(R12), SI
	MOVQ $8, DX
	MOVQ $1, AX // write
	SYSCALL
	JMP  wait
exit:
	MOVQ $127, DI
	MOVQ $60, AX // exit
	SYSCALL
	JMP  exit

// onChild is the handler of SIGCHLD: it counts into an eventfd and touches nothing else. It runs on the
// signal stack that Go gives to each of its threads.
TEXT onChild<>(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVQ ·childFD(SB), DI
	LEAQ one<>(SB), SI
	MOVQ $8, DX
	MOVQ $1, AX
	SYSCALL
	RET

TEXT onReturn<>(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVQ $15, AX // rt_sigreturn
	SYSCALL
	INT  $3

// func handlers() (handler, restorer uintptr)
TEXT ·handlers(SB), NOSPLIT, $0-16
	LEAQ onChild<>(SB), AX
	MOVQ AX, handler+0(FP)
	LEAQ onReturn<>(SB), AX
	MOVQ AX, restorer+8(FP)
	RET

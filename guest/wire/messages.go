package wire

// Stream of a command's output.
type Stream uint8

// The streams.
const (
	Stdout   Stream = 1
	Stderr   Stream = 2
	Terminal Stream = 3
)

// Claim turns a warm shell into a sandbox: the root file system travels beside it as a descriptor of a
// detached mount (containers), or is named by the layers to mount (VM guests, later).
type Claim struct {
	Hostname        string
	Env             []string // NAME=value; the default environment of every command
	User            string   // default user of commands; empty = root
	Workdir         string   // default directory; empty = the user's home, else /
	NoNewPrivileges bool
	ShmBytes        int64 // size of /dev/shm; 0 = as prepared
	// Seed is randomness; empty for containers. In a whole system that has been claimed it says that the sandbox goes on in
	// another machine, and that the rest holds from now on.
	Seed []byte
}

// Start starts a command. Exactly one of Argv and Shell is set; with Session, Shell runs in that session.
type Start struct {
	ID            string // chosen by the edge, unique in the sandbox
	Argv          []string
	Shell         string
	Env           []string // added to the sandbox's, later wins
	Cwd           string
	User          string
	Stdin         bool  // keep stdin open for Input; otherwise it is /dev/null
	TimeoutMillis int64 // 0 = none; the whole tree is killed
	Columns, Rows uint16
	Terminal      bool
	Session       string
}

// Started answers Start.
type Started struct {
	PID int32
}

// Exit tells how a command ended. It is sent when its leader has ended and its output has been drained for a
// bounded moment.
type Exit struct {
	Code           int32 // exit code when Signal is 0
	Signal         int32
	TimedOut       bool
	Killed         bool  // ended by Signal or Kill from the edge
	OutputEnd      int64 // offset after the last byte of output
	DurationMicros int64
	// SessionEnded: the command ended its session's shell (exit, exec).
	SessionEnded bool
}

// CommandStatus describes a command that dsec-init knows: running, or ended and not yet released.
type CommandStatus struct {
	ID       string
	PID      int32
	Session  string
	Ended    bool
	Exit     Exit
	Buffered int64 // first offset that is still held
	End      int64 // offset after the last byte read so far
}

// OpenSession starts a stateful shell.
type OpenSession struct {
	ID   string
	User string
	Cwd  string
	Env  []string
}

// FileInfo describes one file. Path is raw bytes.
type FileInfo struct {
	Path    string
	Mode    uint32 // st_mode: type and permission bits
	UID     uint32
	GID     uint32
	Size    int64
	MtimeNS int64
	Target  string // of a symbolic link
	Attrs   []Attr // where they were asked for
}

// OpenWrite describes a file to write atomically.
type OpenWrite struct {
	Path    string
	User    string
	Mode    uint32 // 0 = keep the old file's, else 0644
	Owner   string // "" = the user; else USER[:GROUP], needs a privileged user
	Parents bool
	Attrs   []Attr
}

// Code of an Error, one to one with what the edge reports.
type Code uint8

// The codes.
const (
	CodeInternal Code = iota
	CodeInvalid
	CodeNotFound      // file, user, command, session
	CodeExists        // already
	CodePermission    // EACCES, EPERM, EROFS
	CodeNotDirectory  // ENOTDIR
	CodeIsDirectory   // EISDIR
	CodeNotEmpty      // ENOTEMPTY
	CodeNoSpace       // ENOSPC, EDQUOT
	CodeExhausted     // a bound of dsec-init: commands, sessions, open files
	CodeNoUser        // no such user or group
	CodeNoCwd         // working directory is missing or closed
	CodeNotExecutable // 126
	CodeNoProgram     // 127
	CodeSessionEnded  // the session's shell is gone
	CodeRefused       // nothing listens on the port
	CodeClosed        // the channel is gone
	CodeWrongState    // claim twice, start before claim, session busy

	codeLast = CodeWrongState
)

// Error is a refusal by dsec-init.
type Error struct {
	Code    Code
	Message string
}

func (e *Error) Error() string { return e.Message }

package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Config is where the service is and the key to it.
type Config struct {
	URL string `json:"url"`
	Key string `json:"key"`
}

// DefaultStateDir is where `dsec up` keeps its state.
const DefaultStateDir = "/var/lib/dsec"

// ErrNoConfig says that nothing tells where the service is.
var ErrNoConfig = errors.New("no DSec service is known: start one on this machine with `dsec up --detach`, or set DSEC_URL and DSEC_API_KEY")

// UserConfigPath is the file of the current user: ~/.config/dsec/client.json.
func UserConfigPath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the user's configuration directory: %w", err)
	}
	return filepath.Join(dir, "dsec", "client.json"), nil
}

// LoadConfig takes DSEC_URL and DSEC_API_KEY; what they leave open comes from the user's file, else from the one
// in the default state directory. Error: ErrNoConfig.
func LoadConfig() (Config, error) {
	c := Config{URL: os.Getenv("DSEC_URL"), Key: os.Getenv("DSEC_API_KEY")}.trimmed()
	if c.URL != "" && c.Key != "" {
		return c, nil
	}
	var paths []string
	if p, err := UserConfigPath(); err == nil {
		paths = append(paths, p)
	}
	paths = append(paths, filepath.Join(DefaultStateDir, "client.json"))
	for _, p := range paths {
		f, err := ReadConfig(p)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return Config{}, err
		}
		if c.URL != "" && strings.TrimRight(c.URL, "/") != strings.TrimRight(f.URL, "/") { // a key of another service is of no use to this one
			continue
		}
		if c.Key == "" {
			c.Key = f.Key
		}
		c.URL = f.URL
		return c, nil
	}
	if c.URL == "" {
		return Config{}, ErrNoConfig
	}
	return c, nil
}

// trimmed takes away what a file or a shell has put around the values: a line's end, above all.
func (c Config) trimmed() Config {
	return Config{URL: strings.TrimSpace(c.URL), Key: strings.TrimSpace(c.Key)}
}

// checkKey refuses what no header can carry. The error does not show the key.
func checkKey(key string) error {
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return fmt.Errorf("API key: byte %d of %d is a space, a control character or not ASCII, which no key has: give it as `dsec key create` printed it (DSEC_API_KEY)", i+1, len(key))
		}
	}
	return nil
}

// ReadConfig reads one file.
func ReadConfig(path string) (Config, error) {
	var c Config
	b, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("read client configuration: %w", err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read client configuration %s: %w", path, err)
	}
	return c, nil
}

// WriteConfig writes one file whole, readable by its owner only; missing directories are made.
func WriteConfig(path string, c Config) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode client configuration: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write client configuration: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".client-*.json") // mode 0600
	if err != nil {
		return fmt.Errorf("write client configuration: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write client configuration %s: %w", path, err)
	}
	return nil
}

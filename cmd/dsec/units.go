package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// parseSize reads 512m, 1.5g, 64KiB or plain bytes; units are powers of 1024.
func parseSize(s string) (int64, error) {
	num := strings.TrimRight(strings.ToLower(s), "ib")
	shift := 0
	if n := len(num); n > 0 {
		if i := strings.IndexByte("kmgt", num[n-1]); i >= 0 {
			shift, num = 10*(i+1), num[:n-1]
		}
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) || math.Abs(f*float64(int64(1)<<shift)) > 1<<60 {
		return 0, fmt.Errorf("size %q: want a number with k, m, g or t behind it, like 512m", s)
	}
	return int64(f * float64(int64(1)<<shift)), nil
}

// parseSeconds reads 10m, 1h30m or plain seconds.
func parseSeconds(s string) (float64, error) {
	if f, err := strconv.ParseFloat(s, 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
		return f, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("duration %q: want something like 90s, 10m or 1h30m", s)
	}
	return d.Seconds(), nil
}

// parsePairs reads NAME=VALUE; a NAME alone takes its value from lookup (the environment).
func parsePairs(what string, pairs []string, lookup func(string) (string, bool)) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(pairs))
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if name == "" {
			return nil, fmt.Errorf("%s %q: want NAME=VALUE", what, p)
		}
		if !ok {
			if lookup == nil {
				return nil, fmt.Errorf("%s %q: want NAME=VALUE", what, p)
			}
			if value, ok = lookup(name); !ok {
				return nil, fmt.Errorf("%s %s: it is not set here: write %s=VALUE", what, name, name)
			}
		}
		out[name] = value
	}
	return out, nil
}

package s3

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/opendsec/dsec/sandbox"
)

// Config names a bucket. Credentials are not in it: they come from a file, or from the environment
// (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN).
type Config struct {
	Bucket   string
	Prefix   string // of all keys; empty, or ending in a slash
	Endpoint string // http(s)://HOST:PORT; empty = Amazon's
	Region   string // empty = asked for, or us-east-1
	// CredentialsFile has the form of ~/.aws/credentials; its profile is "default" or AWS_PROFILE.
	CredentialsFile string
	// HostStyle puts the bucket into the host's name instead of the path.
	HostStyle bool
	// Timeout is for how long the service may stand still in a request; 0 = 30 s.
	Timeout time.Duration
}

// Check refuses what cannot be meant. Error: sandbox.ErrInvalid.
func (c *Config) Check() error {
	if len(c.Bucket) < 3 || strings.ContainsAny(c.Bucket, "/:@ ") {
		return fmt.Errorf("%w: bucket %q: want s3://BUCKET", sandbox.ErrInvalid, c.Bucket)
	}
	_, _, err := c.endpoint()
	return err
}

// endpoint splits the endpoint as the client wants it.
func (c *Config) endpoint() (host string, secure bool, err error) {
	if c.Endpoint == "" {
		return "s3.amazonaws.com", true, nil
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" {
		return "", false, fmt.Errorf("%w: endpoint=%s: want http://HOST:PORT or https://HOST", sandbox.ErrInvalid, c.Endpoint)
	}
	return u.Host, u.Scheme == "https", nil
}

// client makes a client; it speaks to nobody yet.
func (c *Config) client() (*minio.Core, error) {
	host, secure, err := c.endpoint()
	if err != nil {
		return nil, err
	}
	creds := credentials.NewEnvAWS()
	if c.CredentialsFile != "" {
		creds = credentials.NewFileAWSCredentials(c.CredentialsFile, "")
	}
	if v, err := creds.GetWithContext(nil); err != nil || v.AccessKeyID == "" {
		where := "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"
		if c.CredentialsFile != "" {
			where = "no keys in " + c.CredentialsFile
		}
		return nil, fmt.Errorf("s3: %w: no credentials: %s", sandbox.ErrInvalid, where)
	}
	lookup := minio.BucketLookupPath
	if c.HostStyle {
		lookup = minio.BucketLookupDNS
	}
	region := c.Region
	if region == "" && c.Endpoint != "" {
		region = "us-east-1" // else it is asked for before each first request
	}
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, err
	}
	transport.ResponseHeaderTimeout = 0 // watched's
	// Attempts are the callers': they have deadlines.
	return minio.NewCore(host, &minio.Options{Transport: &watched{transport, cmp.Or(c.Timeout, defaultTimeout)}, Creds: creds, Secure: secure, Region: region, BucketLookup: lookup, MaxRetries: 1})
}

package apiserver

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one Server, in a registry of its own.
type metrics struct {
	registry  *prometheus.Registry
	failures  *prometheus.CounterVec
	forwarded prometheus.Counter
	inFlight  prometheus.Gauge
	seconds   prometheus.Histogram
}

func newMetrics() *metrics {
	m := &metrics{
		registry:  prometheus.NewRegistry(),
		failures:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dsec_api_failures_total", Help: "Requests that the API server itself answered with an error, by code."}, []string{"code"}),
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{Name: "dsec_api_forwarded_total", Help: "Requests forwarded to an edge."}),
		inFlight:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "dsec_api_in_flight", Help: "Requests being served, streams included."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "dsec_api_request_seconds", Help: "Duration of requests, streams included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10)}),
	}
	m.registry.MustRegister(m.failures, m.forwarded, m.inFlight, m.seconds)
	return m
}

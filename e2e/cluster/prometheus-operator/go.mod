// The definitions of the Prometheus operator's kinds, by which tests judge what the charts render.
module ayatori.local/cluster/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.88.0

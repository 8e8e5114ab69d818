module local-cluster/pause

go 1.25.0

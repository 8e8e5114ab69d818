module consumerfleet.io/tests/python

go 1.26

require github.com/python/cpython v3.13.15+incompatible

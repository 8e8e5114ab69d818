module consumerfleet.io/tests/python

go 1.26

require github.com/python/cpython v3.14.7+incompatible

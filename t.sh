cd /tmp/s12; PYTHONPATH=.:operator:consumer_image timeout 500 nice -n 19 .venv/bin/python -m bench.simulate.table "$@"

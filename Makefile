# For those whose fingers type make; ./run is the real thing and needs no make.
.PHONY: demo test check bench soak lock help
demo: ; @./run
test: ; @./run test
check: ; @./run check
bench: ; @./run bench
soak: ; @./run soak
lock: ; @./run lock
help: ; @./run help

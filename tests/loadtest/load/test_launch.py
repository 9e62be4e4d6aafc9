"""What of a launched server can be told without one."""

from loadtest.load.launch import layout_of

PORTS = "http=127.0.0.1:1 grpc=127.0.0.1:2 admin=127.0.0.1:3"


def test_layout_is_parsed_from_the_ready_line_without_models():
    said = f"a warning\nfreshet: ready in 1.90 s {PORTS} workers=2 models=a@1.0,b@2.7 compute=inline (2 cores)\nmore\n"

    assert layout_of(said) == "workers=2 compute=inline (2 cores)"
    assert layout_of(f"freshet: ready in 0.10 s {PORTS} workers=1 models=") == "workers=1"


def test_layout_is_unknown_before_the_ready_line():
    assert layout_of("") == ""
    assert layout_of("not that: workers=2") == ""

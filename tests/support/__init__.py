"""What tests of many modules share: small packages, keys, waiting, servers to talk to."""

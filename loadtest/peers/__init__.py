"""The same network and lookups behind other servers, each in its own virtual environment: `make -C loadtest peers`.

roster        the peers: how each is reached, its settings
process       a peer in its virtual environment
measure       one peer against Freshet, turn by turn
bodies        the same inputs as each peer wants them
same_kernels  what every peer serves: our kernels and executables, no server of ours
plain         requests as plain bytes, and the options that all peers have
peers_report  the page
"""

__all__: list[str] = []

"""`python -m outpace.engines.cluster SOCKET RANK`: where a rank's agents come from, as the rank starts it."""

import socket
import sys

from outpace.engines.cluster.agent import live
from outpace.engines.cluster.supervisor import serve

if __name__ == "__main__":
    connection, rank = map(int, sys.argv[1:])
    serve(socket.socket(fileno=connection), rank, live)

"""A TCP proxy on a port of its own whose connections a test can cut, and whose server it can replace."""

import socket
import threading

RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER: close with a reset


class Proxy:
    def __init__(self, port):
        """`port`: the server's; None refuses everybody."""
        self.target, self.lock, self.open = port, threading.Lock(), set()
        self.accepted = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.cut()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                if self.target is None:
                    raise OSError
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                self.reset(client)
                continue
            with self.lock:
                self.open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=(source, sink), daemon=True).start()

    def copy(self, source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for side in (source, sink):
            try:
                side.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @staticmethod
    def reset(connection):
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        connection.close()

    def cut(self):
        """Ends all connections, as a network does that goes away."""
        with self.lock:
            gone, self.open = self.open, set()
        for connection in gone:
            self.reset(connection)

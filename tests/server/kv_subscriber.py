"""Reads KV events as a router does: [topic, number, message] from a ZeroMQ socket, applied to a model of the cache."""

import msgpack
import zmq


class Gap(Exception):
    """Messages were missed; `first` is the first of them."""

    def __init__(self, first):
        super().__init__(f"message {first} is missing")
        self.first = first


class Subscriber:
    def __init__(self, address, replay=None, topic=b"", keys=None):
        """`keys`: the server's public key, our public and our secret key."""
        self.context = zmq.Context()
        self.socket = self.connect(zmq.SUB, address, keys)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        self.replay = self.connect(zmq.DEALER, replay, keys) if replay else None
        self.last, self.epoch, self.blocks, self.cleared, self.events = -1, None, {}, 0, 0

    def connect(self, kind, address, keys):
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        if keys:
            socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = keys
        socket.connect(address)
        return socket

    def close(self):
        self.context.destroy(linger=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def skip(self, milliseconds):
        """Takes the next message and forgets it: its number, or None."""
        if not self.socket.poll(milliseconds):
            return None
        return int.from_bytes(self.socket.recv_multipart()[1], "big")

    def read(self, milliseconds):
        """Applies messages until none comes for so long; how many."""
        num = 0
        while self.socket.poll(milliseconds):
            _, number, message = self.socket.recv_multipart()
            number = int.from_bytes(number, "big")
            if number <= self.last:  # came as an answer, too
                continue
            if number != self.last + 1 and msgpack.unpackb(message)[1][0]["type"] != "AllBlocksCleared":
                raise Gap(self.last + 1)
            self.apply(number, message)
            num += 1
        return num

    def fill(self, first, milliseconds):
        """Asks for the messages from `first` on, and applies those that come: how many."""
        self.replay.send_multipart([b"", first.to_bytes(8, "big")])
        num = 0
        while self.replay.poll(milliseconds):
            _, number, message = self.replay.recv_multipart()
            if number == b"\xff" * 8:
                assert message == b""
                return num
            self.apply(int.from_bytes(number, "big"), message)
            num += 1
        raise TimeoutError("the answer has no end")

    def apply(self, number, message):
        self.last = number
        _, events, rank = msgpack.unpackb(message)
        assert rank == 0
        for e in events:
            self.events += 1
            self.epoch = e["epoch"]
            kind = e["type"]
            if kind == "AllBlocksCleared":
                self.cleared += 1
                self.blocks.clear()
            elif kind == "BlockStored":
                self.store(e)
            else:
                assert kind == "BlockRemoved", kind
                for block in e["block_hashes"]:
                    del self.blocks[e["medium"], block]

    def store(self, e):
        size, parent = e["block_size"], e["parent_block_hash"]
        assert len(e["token_ids"]) == size * len(e["block_hashes"]) and e["lora_id"] is None
        for i, block in enumerate(e["block_hashes"]):
            name = e["medium"], block
            assert name not in self.blocks, "stored twice"
            self.blocks[name] = (parent, tuple(e["token_ids"][i * size:(i + 1) * size]))
            parent = block

    def count(self, medium):
        return sum(m == medium for m, _ in self.blocks)

    def prefix(self, tokens, size):
        """How many of these tokens are known to be cached, in any medium."""
        by_parent = {(parent, content): block for (_, block), (parent, content) in self.blocks.items()}
        at, block = 0, None
        while at + size <= len(tokens):
            block = by_parent.get((block, tuple(tokens[at:at + size])))
            if block is None:
                break
            at += size
        return at

"""Over the network, in lockstep: fork one world into four futures, step all in one batched call, keep the best.

physis-stream serve            # in another terminal
python examples/fork_and_compare.py
"""

import os

from physis_client import Client


def main(url: str = os.environ.get("PHYSIS_URL", "http://127.0.0.1:8080"), depth: int = 10) -> None:
    with Client(url) as client, client.open_session("pusht", seed=3, mode="lockstep") as session:
        action = next(m for m in client.models() if m.name == "pusht").action
        corners = [[x, y] for x in (action["low"][0], action["high"][0]) for y in (action["low"][1], action["high"][1])]
        futures = session.fork(len(corners))
        for _ in range(depth):
            chunks = client.step_many(futures, corners)
        for corner, chunk in zip(corners, chunks, strict=True):
            print(corner, "reward", chunk.reward, "state", dict(chunk.state))
        for future in futures:
            future.close()


if __name__ == "__main__":
    main()

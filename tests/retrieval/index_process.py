"""usage: index_process.py STORE CORPUS [SECONDS_A_BATCH]: index a corpus in a process of its own, as slowly as told.
Prints "batch" after each committed batch, and the totals at the end."""

import sys
import time

from hashing import HashingEmbedder, words

from linearkv.errors import LinearKVError
from linearkv.retrieval import Retriever


def main(store, corpus, pause="0"):
    def on_batch(batch):
        print("batch", batch.chunks, flush=True)
        time.sleep(float(pause))

    try:
        with Retriever(store, HashingEmbedder(), words, 64) as retriever:
            report = retriever.sync(corpus, on_batch=on_batch)
        print("done", report.documents, report.added, report.unchanged, flush=True)
    except LinearKVError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The four messages that a reader of the clinic sorts: public threads, and why each answer is right or wrong."""

CANNOT = "the message cannot tell"
# source -> the answer, why it is right, and what each wrong one would need
FOUR = {
    "huggingface/trl#5750": (
        "another owner",
        "Free, allocated and unallocated are 4.1 GiB together; the card has 14.7. The rest is somebody else's: TRL's "
        "tests ran in several processes on one card.",
        {
            "fragments": "Only 0.07 GiB are unallocated: there is nothing to be in pieces.",
            "tensors": "This process has 3.3 GiB in tensors, on a card of 14.7.",
            CANNOT: "Free, allocated and unallocated are all there: add them up.",
        },
    ),
    "pytorch/pytorch#31353": (
        "fragments",
        "5.1 GiB are unallocated, and 1.9 are refused: there is room enough, in pieces. The reporter calls it probably "
        "fragmentation; with empty_cache() the largest batch rose from 226 to over 256, and the run became much slower.",
        {
            "another owner": "Free, allocated and unallocated add up to nearly the whole card.",
            "tensors": "The request would fit into what is unallocated: the card is not full.",
            CANNOT: "All five numbers are there, and the request would fit into what is unallocated.",
        },
    ),
    "NVIDIA/mellotron#24": (
        "tensors",
        "10.8 of 11.2 GiB are in tensors, and 54 MiB are unallocated: the card is full. The reporter found some texts of "
        "the data set to be the cause.",
        {
            "another owner": "All but 0.3 GiB of the card are this process's.",
            "fragments": "2 MiB is what PyTorch asks the driver for, to serve a tensor of 1 MiB or less. Such tensors "
            "have a pool of their own; the 54 MiB may all lie in the other.",
            CANNOT: "Nobody else is there, and half a per cent of the card is in pieces.",
        },
    ),
    "SemiAnalysisAI/InferenceX#1461": (
        CANNOT,
        "Nobody else is there: this process has 138.8 of 139.8 GiB. How much of it is in tensors and how much in pieces "
        "stands in the part that the thread does not quote. `labkit.memory.owner` says so, too: paste the whole message.",
        {
            "another owner": "All of the card is free or this process's.",
            "fragments": "It may be: the number that would say so is not quoted.",
            "tensors": "It may be, and the thread says so from other measurements. The message does not.",
        },
    ),
}

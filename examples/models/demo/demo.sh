#!/bin/sh
# The demonstration: several methods answer the same requests on two ranks (threads of one process).
set -eu
tributary=${1:?usage: demo.sh PATH_OF_TRIBUTARY}
here=$(dirname "$0")

"$tributary" compare --model "$here" --world-size 2 --max-tokens 4 --repeat 3 \
    --request "$here"/requests/hop2-0.json "$here"/requests/hop2-1.json "$here"/requests/vt2-0.json \
    "$here"/requests/vt3-1.json "$here"/requests/vt3-5.json "$here"/requests/hop2_back-0.json "$here"/requests/vt3_rev-0.json \
    --methods full ring none random infoflow infoflow:reorder relay trace

cat <<'END'

What this shows. Each answer hangs together from facts in different documents: `none`, which prefills every document on its
own and stops there, gets none of these requests right, and `infoflow`, which recomputes the 15 % of the tokens that the
query attends to, answers those that need one hop (hop2, vt2).
`infoflow:reorder` puts the document that matters last, and so answers hop2_back, where the fact stands after the sentence
that needs it and full prefill, which reads forward, cannot know; `relay` asks a second time, from the tokens that the query
named, and so answers the chains of three (vt3) that one look from the query cannot follow. `trace` finds out which document depends on
which, whatever order they came in, and puts them in that order: it alone answers vt3_rev, a chain of three in documents that all stand the
wrong way round.
The model has 0.8 M parameters and the requests were picked to show these cases (examples/models/demo/README.md has the rates), so
the times here are mostly overhead: `make bench` compares times on a larger model, where recomputing less pays.
END

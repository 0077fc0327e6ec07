//! Methods and what holds of all of them: one program, so that it is linked once.

mod anchored;
mod apb;
mod ape;
mod bytes;
mod cacheclip;
mod cancel;
mod conversation;
mod dropped;
mod eight_bits;
mod equivalence;
mod hand_over;
mod lead;
mod order_for;
mod packets;
mod pictures;
mod prefix;
mod recorded;
mod scored;
mod slices;
mod spec_prefill;
mod star;
mod stored;
mod tiles;
mod trace;
mod warm;
mod windows;

//! How much memory a target may take for its input: more for a longer one, but never with its square.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

/// For what does not depend on the input's length: tables of names, messages.
const FIXED: usize = 64 << 10;
/// Each byte of the input may cost so many: the largest is a small table or item for every few bytes of text.
const FOR_EACH_BYTE: usize = 600;

// SAFETY: it is the system's allocator; the count is a thread's own number and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|bytes| bytes.set(bytes.get().wrapping_add(layout.size())));
        // SAFETY: as of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as of the caller.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATED.try_with(|bytes| bytes.set(bytes.get().wrapping_add(size)));
        // SAFETY: as of the caller.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads the input.
///
/// # Panics
/// If it took more memory, in all, than an input of this length may.
pub fn bounded<I: AsRef<[u8]> + ?Sized, T>(input: &I, read: impl FnOnce(&I) -> T) -> T {
    let before = ALLOCATED.get();
    let result = read(input);
    let took = ALLOCATED.get().wrapping_sub(before);
    let length = input.as_ref().len();
    assert!(took <= FIXED + FOR_EACH_BYTE * length, "{took} bytes of memory for {length} bytes of input");
    result
}

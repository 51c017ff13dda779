//! Bounds the memory that a target may allocate for its input: linear in the input's length, so never quadratic.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

/// The bytes for allocations that do not depend on the input's length, such as tables of names and messages.
const FIXED: usize = 64 << 10;
/// The bytes that each byte of input may cost. The largest cost is a small table or item for every few bytes of text.
const FOR_EACH_BYTE: usize = 600;

// SAFETY: every call is passed on to the system's allocator; the thread-local counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|bytes| bytes.set(bytes.get().wrapping_add(layout.size())));
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATED.try_with(|bytes| bytes.set(bytes.get().wrapping_add(size)));
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls `read` with the input, and returns its result.
///
/// # Panics
/// Panics if `read` allocated more memory in all than is allowed for an input of this length.
pub fn bounded<I: AsRef<[u8]> + ?Sized, T>(input: &I, read: impl FnOnce(&I) -> T) -> T {
    let before = ALLOCATED.get();
    let result = read(input);
    let took = ALLOCATED.get().wrapping_sub(before);
    let length = input.as_ref().len();
    assert!(took <= FIXED + FOR_EACH_BYTE * length, "allocated {took} bytes for {length} bytes of input");
    result
}

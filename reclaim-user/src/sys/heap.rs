//! Memory that was used for a while.
#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "a call of the C library that nothing wraps"))]

/// Gives pages of the heap that hold nothing back to the system: what a start leaves behind is not kept for good.
///
/// See malloc_trim(3); elsewhere than with glibc nothing is done.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

//! Memory that was used for a while.
#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "a call of the C library that nothing wraps"))]

/// From here on keeps little memory that is free. To be called before other threads are started.
///
/// Else the first large piece freed makes glibc keep twice as much at the end of each heap, for good: a start that reads
/// the kernel's type information leaves ten megabytes there. And what is free at the end of a heap of one thread is out
/// of reach for [`give_back`], so all threads share one.
///
/// See mallopt(3), `M_TRIM_THRESHOLD` and `M_ARENA_MAX`; elsewhere than with glibc nothing is done.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    {
        // The value that glibc starts with: what counts is that it is set, and does not grow.
        set(libc::M_TRIM_THRESHOLD, 128 * 1024);
        set(libc::M_ARENA_MAX, 1);
    }
}

#[cfg(target_env = "gnu")]
fn set(parameter: libc::c_int, value: libc::c_int) {
    // SAFETY: it takes no pointer, and may be called at any time from any thread.
    unsafe {
        libc::mallopt(parameter, value);
    }
}

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

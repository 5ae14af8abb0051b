//! What the kernel says of this process.

use opentelemetry::metrics::Meter;
use procfs::WithCurrentSystemInfo;
use procfs::process::{Process, Stat};

pub(crate) fn observe(meter: &Meter) {
    meter
        .u64_observable_gauge("process.resident_memory")
        .with_unit("By")
        .with_description("Resident memory size")
        .with_callback(|observer| {
            if let Some(stat) = stat() {
                observer.observe(stat.rss_bytes().get(), &[]);
            }
        })
        .build();
    meter
        .f64_observable_counter("process.cpu")
        .with_unit("s")
        .with_description("User and system CPU time spent")
        .with_callback(|observer| {
            if let Some(stat) = stat() {
                observer.observe(seconds(stat.utime.saturating_add(stat.stime)), &[]);
            }
        })
        .build();
    meter
        .f64_observable_gauge("process.start_time")
        .with_unit("s")
        .with_description("Start of the process, since the Unix epoch")
        .with_callback(|observer| {
            if let (Some(stat), Ok(boot)) = (stat(), procfs::boot_time_secs()) {
                observer.observe(boot as f64 + seconds(stat.starttime), &[]);
            }
        })
        .build();
    meter
        .u64_observable_gauge("process.open_fds")
        .with_description("Open file descriptors")
        .with_callback(|observer| {
            let open = Process::myself().and_then(|process| process.fd_count());
            if let Some(open) = open.ok().and_then(|open| u64::try_from(open).ok()) {
                observer.observe(open, &[]);
            }
        })
        .build();
}

fn stat() -> Option<Stat> {
    Process::myself().and_then(|process| process.stat()).ok()
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

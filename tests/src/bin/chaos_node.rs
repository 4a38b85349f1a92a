//! A node in a process of its own, for cases in which processes are killed and stopped.

fn main() {
    tidegate_tests::chaos::node_process();
}

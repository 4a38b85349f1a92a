//! A node in a separate process, for cases in which processes are killed and stopped.

fn main() {
    tidegate_tests::chaos::node_process();
}

//! One small program per question; see the files beside this one.

use super::*;

#[test]
fn no_part_gets_more_than_it_has_room_for() {
    assert_eq!(spread(9, &[5, 5, 5]), [3, 3, 3]);
    assert_eq!(spread(10, &[5, 5, 5]), [3, 3, 4]);
    assert_eq!(spread(10, &[1, 9, 2]), [1, 7, 2]);
    assert_eq!(spread(1, &[0, 4, 0]), [0, 1, 0]);
    assert_eq!(spread(0, &[4, 4]), [0, 0]);
}

#[test]
fn what_fits_nowhere_is_not_lost() {
    assert_eq!(spread(10, &[1, 2, 3]), [1, 2, 7]);
    assert_eq!(spread(3, &[0, 0]), [0, 3]);
    let (units, room) = (1_000_003, [7, 0, 500_000, 1 << 40, 123]);
    assert_eq!(spread(units, &room).iter().sum::<u64>(), units);
}

! Offsets from counts: offset(i) is the sum of all counts before i, and offset(n + 1) that of all. Counts may be negative.
subroutine exclusive_scan(n, count, offset) bind(c)
    use iso_c_binding, only: c_int
    implicit none
    integer(c_int), value :: n
    integer(c_int), intent(in) :: count(n)
    integer(c_int), intent(out) :: offset(n + 1)
    integer :: i

    offset(1) = 0
    do i = 1, n
        offset(i + 1) = offset(i) + count(i)
    end do
end subroutine exclusive_scan

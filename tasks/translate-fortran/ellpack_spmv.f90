! Product of a sparse matrix and a vector. Each row has room for `width` entries (ELLPACK): slot s of row r holds a value
! and its column, counted from 0, or column -1 where the row has fewer entries.
subroutine ellpack_spmv(rows, width, cols, column, value, x, y) bind(c)
    use iso_c_binding, only: c_int, c_float
    implicit none
    integer(c_int), value :: rows, width, cols
    integer(c_int), intent(in) :: column(rows, width)
    real(c_float), intent(in) :: value(rows, width), x(0:cols-1)
    real(c_float), intent(out) :: y(rows)
    integer :: row, slot

    y = 0.0
    do slot = 1, width
        do row = 1, rows
            if (column(row, slot) < 0) cycle
            y(row) = y(row) + value(row, slot) * x(column(row, slot))
        end do
    end do
end subroutine ellpack_spmv

! One explicit time step of the heat equation on a grid; the border keeps its values.
! r = diffusivity * time step / spacing^2
subroutine heat_step(rows, cols, r, u, next) bind(c)
    use iso_c_binding, only: c_int, c_float
    implicit none
    integer(c_int), value :: rows, cols
    real(c_float), value :: r
    real(c_float), intent(in) :: u(cols, rows)
    real(c_float), intent(out) :: next(cols, rows)

    next = u
    next(2:cols-1, 2:rows-1) = u(2:cols-1, 2:rows-1) + r * (u(2:cols-1, 1:rows-2) + u(2:cols-1, 3:rows) &
        + u(1:cols-2, 2:rows-1) + u(3:cols, 2:rows-1) - 4.0 * u(2:cols-1, 2:rows-1))
end subroutine heat_step

! Value of a polynomial at every point, by Horner's rule. coefficient(k) belongs to the power k - 1.
subroutine horner(terms, n, coefficient, x, value) bind(c)
    use iso_c_binding, only: c_int, c_float
    implicit none
    integer(c_int), value :: terms, n
    real(c_float), intent(in) :: coefficient(terms), x(n)
    real(c_float), intent(out) :: value(n)
    integer :: k

    value = coefficient(terms)
    do k = terms - 1, 1, -1
        value = value * x + coefficient(k)
    end do
end subroutine horner
